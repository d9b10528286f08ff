-- Files that only conversations have are looked up by their size when chats come in from a file.
create index folder_documents_without_folder on folder_documents (num_bytes) where folder_id is null;
