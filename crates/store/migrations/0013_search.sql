-- The words of messages, and which messages are in that index.

-- What is searched in place of the text: an answer without its reasoning, and characters of scripts
-- without spaces set apart. Null where that is the text itself.
alter table messages add column search_text text;

create view searchable as select seq, coalesce(search_text, text) as text from messages;

-- The texts stay in `messages`; only their words are here. Beginnings of words of two and three letters
-- have an index of their own, because many words share them.
create virtual table message_search using fts5(
    text,
    content = 'searchable', content_rowid = 'seq',
    tokenize = 'unicode61 remove_diacritics 2',
    prefix = '2 3'
);
-- What is deleted is removed from the index at once, and not when its parts are merged.
insert into message_search (message_search, rank) values ('secure-delete', 1);

-- Messages with this number or a greater one are in the index, except those that are streaming. It
-- begins above all messages of an earlier version and falls to 1 while the app indexes them.
create table search_progress (
    id integer primary key check (id = 1),
    indexed_from integer not null,
    -- Where it began.
    began_from integer not null
) strict;
insert into search_progress
    select 1, coalesce(max(seq), 0) + 1, coalesce(max(seq), 0) + 1 from messages;

-- The index follows the table, whoever writes to it. An answer is indexed when it has ended: while it is
-- written, its text changes many times.
create trigger search_inserted after insert on messages
when new.status <> 'streaming' and new.seq >= (select indexed_from from search_progress)
begin
    insert into message_search (rowid, text) values (new.seq, coalesce(new.search_text, new.text));
end;

create trigger search_deleted after delete on messages
when old.status <> 'streaming' and old.seq >= (select indexed_from from search_progress)
begin
    insert into message_search (message_search, rowid, text)
        values ('delete', old.seq, coalesce(old.search_text, old.text));
end;

create trigger search_updated after update of status, text, search_text on messages
when new.seq >= (select indexed_from from search_progress)
    and not (old.status = 'streaming' and new.status = 'streaming')
begin
    insert into message_search (message_search, rowid, text)
        select 'delete', old.seq, coalesce(old.search_text, old.text) where old.status <> 'streaming';
    insert into message_search (rowid, text)
        select new.seq, coalesce(new.search_text, new.text) where new.status <> 'streaming';
end;
