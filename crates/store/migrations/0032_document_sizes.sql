-- Until now a document was counted without the marks that name it in a prompt. It is counted again when its
-- conversation or its folder is opened.
update documents set num_tokens = null, counted_by = null where num_tokens is not null;

update folder_documents set num_tokens = null, counted_by = null where num_tokens is not null;
