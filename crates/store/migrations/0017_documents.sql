-- Files that stand before a question, as text. A document is in the draft of its conversation until a
-- message is sent with it; versions of that message share it.
create table documents (
    seq integer primary key autoincrement,
    id text not null unique,
    conversation_id text not null references conversations (id) on delete cascade,
    name text not null,
    kind text not null check (kind in ('text', 'code', 'markdown', 'csv', 'html', 'pdf')),
    state text not null check (state in ('draft', 'sent', 'removed')),
    -- The run that removed it from the draft and may still undo that.
    removed_by_run_id text,
    num_bytes integer not null,
    -- How many tokens it has for the model of this name; null: nobody has counted.
    num_tokens integer,
    counted_by text,
    created_at_ms integer not null,
    -- The last column: SQLite reads through what stands before the one it wants.
    text text not null,
    check ((state = 'removed') = (removed_by_run_id is not null))
) strict;

create index documents_by_conversation on documents (conversation_id, state);

create table message_documents (
    message_id text not null references messages (id) on delete cascade,
    document_id text not null references documents (id) on delete cascade,
    primary key (message_id, document_id)
) strict;

create index message_documents_by_document on message_documents (document_id);

-- What no message has any more goes with the last one that had it.
create trigger document_left after delete on message_documents
begin
    delete from documents where id = old.document_id and state = 'sent'
        and not exists (select 1 from message_documents where document_id = old.document_id);
end;
