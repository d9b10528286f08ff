-- Files of folders, as text: what the chats that are begun in a folder have before their first question.
create table folder_documents (
    seq integer primary key autoincrement,
    id text not null unique,
    -- Null: no folder has it any more, only conversations that have begun with it.
    folder_id text references folders (id) on delete set null,
    name text not null,
    kind text not null check (kind in ('text', 'code', 'markdown', 'csv', 'html', 'pdf')),
    -- The run that removed it from the folder and may still undo that.
    removed_by_run_id text,
    num_bytes integer not null,
    -- How many tokens it has for the model of this name; null: nobody has counted.
    num_tokens integer,
    counted_by text,
    created_at_ms integer not null,
    -- The last column: SQLite reads through what stands before the one it wants.
    text text not null
) strict;

create index folder_documents_by_folder on folder_documents (folder_id) where folder_id is not null;

-- What a conversation has begun with, from its first question on: the folder may change later.
create table conversation_documents (
    conversation_id text not null references conversations (id) on delete cascade,
    document_id text not null references folder_documents (id) on delete cascade,
    primary key (conversation_id, document_id)
) strict;

create index conversation_documents_by_document on conversation_documents (document_id);

-- What neither a folder nor a conversation has any more goes.
create trigger conversation_document_left after delete on conversation_documents
begin
    delete from folder_documents where id = old.document_id and folder_id is null
        and not exists (select 1 from conversation_documents where document_id = old.document_id);
end;

create trigger folder_document_left after update of folder_id on folder_documents
when new.folder_id is null
begin
    delete from folder_documents where id = new.id
        and not exists (select 1 from conversation_documents where document_id = new.id);
end;
