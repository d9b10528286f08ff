-- What an answer saved by not reading again what was saved, as it was estimated when it ended. A row for
-- an answer; no foreign key, because what was saved stays saved when the answer goes.
create table answer_savings (
    message_id text not null primary key,
    conversation_id text not null,
    saved_ms real not null,
    at_ms integer not null
) strict;

create index answer_savings_by_conversation on answer_savings (conversation_id, saved_ms);

-- The sum of purged conversations, of which nothing else stays.
create table purged_savings (
    id integer primary key check (id = 1),
    saved_ms real not null,
    since_ms integer not null
) strict;

create trigger savings_purged after delete on conversations
begin
    insert into purged_savings (id, saved_ms, since_ms)
        select 1, sum(saved_ms), min(at_ms) from answer_savings
        where conversation_id = old.id group by conversation_id
    on conflict (id) do update set
        saved_ms = saved_ms + excluded.saved_ms, since_ms = min(since_ms, excluded.since_ms);
    delete from answer_savings where conversation_id = old.id;
end;

-- The system prompt that the last answer was written with; null: not known. Only with it can a changed
-- one be changed back.
alter table conversations add column answered_system_prompt text;
-- Who wrote the title; null: it is the first line of the first question, or older than this column.
alter table conversations add column title_by text check (title_by in ('person', 'model'));
