-- The words of documents. A document is indexed in passages, so that a search finds the place in a long one.
create table document_passages (
    seq integer primary key autoincrement,
    -- Of `documents` or of `folder_documents`.
    document_id text not null,
    -- Where it begins in the text, in UTF-16 code units, which are what the window counts in.
    begin_utf16 integer not null,
    -- As it is searched: characters of scripts without spaces are set apart.
    text text not null
) strict;

create index document_passages_by_document on document_passages (document_id);

-- As `message_search`.
create virtual table document_search using fts5(
    text,
    content = 'document_passages', content_rowid = 'seq',
    tokenize = 'unicode61 remove_diacritics 2',
    prefix = '2 3'
);
insert into document_search (document_search, rank) values ('secure-delete', 1);

create trigger document_passage_inserted after insert on document_passages
begin
    insert into document_search (rowid, text) values (new.seq, new.text);
end;

create trigger document_passage_deleted after delete on document_passages
begin
    insert into document_search (document_search, rowid, text) values ('delete', old.seq, old.text);
end;

-- Documents that are not indexed to their end yet, and up to where they are. A row goes when its document is done.
create table documents_to_index (
    seq integer primary key autoincrement,
    document_id text not null unique,
    indexed_bytes integer not null default 0,
    indexed_utf16 integer not null default 0
) strict;

insert into documents_to_index (document_id)
    select id from documents union all select id from folder_documents;

create trigger document_to_index after insert on documents
begin
    insert into documents_to_index (document_id) values (new.id);
end;

create trigger folder_document_to_index after insert on folder_documents
begin
    insert into documents_to_index (document_id) values (new.id);
end;

create trigger document_unindexed after delete on documents
begin
    delete from document_passages where document_id = old.id;
    delete from documents_to_index where document_id = old.id;
end;

create trigger folder_document_unindexed after delete on folder_documents
begin
    delete from document_passages where document_id = old.id;
    delete from documents_to_index where document_id = old.id;
end;
