-- What requests have computed: a row for each that has ended, also for one that was stopped or failed.
-- Totals are sums of these rows, never of what messages say of themselves, which is copied, deleted and
-- written again. No foreign keys: work that was done stays done. Rows are numbered in the order in which
-- they were written: clocks jump.
create table work (
    id integer primary key,
    at_ms integer not null,
    kind text not null,
    model text not null,
    -- Null: done for no conversation, or for one that was purged.
    conversation_id text,
    message_id text,
    num_read_tokens integer not null,
    -- Tokens from saved context, by where they came from.
    num_in_memory_tokens integer not null,
    num_restored_tokens integer not null,
    num_shared_tokens integer not null,
    num_written_tokens integer not null,
    first_token_ms real
) strict;

create index work_by_time on work (at_ms);
create index work_by_conversation on work (conversation_id) where conversation_id is not null;

create trigger work_of_purged after delete on conversations
begin
    update work set conversation_id = null, message_id = null where conversation_id = old.id;
end;

-- What was read, or found, for a question before it was sent: the tokens from `first` up to `stop` of
-- its prompt. An answer takes the rows of its owners: read tokens save it nothing.
create table read_ahead (
    id integer primary key,
    owner text not null,
    model text not null,
    source text not null check (source in ('read', 'restored', 'shared')),
    first integer not null,
    stop integer not null check (stop > first)
) strict;

create index read_ahead_by_owner on read_ahead (owner, model);

create trigger read_ahead_of_purged after delete on conversations
begin
    delete from read_ahead where owner = 'conversation/' || old.id;
end;

create trigger read_ahead_of_purged_folder after delete on folders
begin
    delete from read_ahead where owner = 'folder/' || old.id;
end;

-- The model whose reading was saved; null: not known.
alter table answer_savings add column model text;
update answer_savings set model = (
    select stats ->> '$.model' from messages
    where messages.id = answer_savings.message_id and json_valid(stats));

-- The answers of the last two days, as they say of themselves; a branch's copies of answers are older
-- than the branch.
insert into work (at_ms, kind, model, conversation_id, message_id, num_read_tokens, num_in_memory_tokens,
    num_restored_tokens, num_shared_tokens, num_written_tokens, first_token_ms)
select messages.created_at_ms, 'answer', coalesce(cast(stats ->> '$.model' as text), ''),
    messages.conversation_id, messages.id,
    max(0, coalesce(cast(stats ->> '$.num_prompt_tokens' as integer), 0)
        - coalesce(cast(stats ->> '$.num_cached_tokens' as integer), 0)),
    max(0, coalesce(cast(stats ->> '$.num_cached_tokens' as integer), 0)), 0, 0,
    max(0, coalesce(cast(stats ->> '$.num_generation_tokens' as integer), 0)),
    nullif(max(0, coalesce(cast(stats ->> '$.time_to_first_token_ms' as real), 0)), 0)
from messages join conversations on conversations.id = messages.conversation_id
where stats is not null and json_valid(stats)
    and messages.created_at_ms > (select max(created_at_ms) from messages) - 2 * 24 * 60 * 60 * 1000
    and not exists (
        select 1 from conversation_branches
        where conversation_branches.conversation_id = messages.conversation_id
            and messages.created_at_ms < conversations.created_at_ms)
order by messages.seq;
