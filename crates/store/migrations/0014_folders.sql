-- Folders of conversations; which conversations are pinned or archived; and where imported ones came
-- from.

create table folders (
    id text not null primary key,
    name text not null,
    -- What every conversation that is begun in it begins with; empty and null: nothing.
    system_prompt text not null,
    model text,
    created_at_ms integer not null,
    deleted_at_ms integer,
    -- The run that deleted it and may still undo that. Its conversations name it until it is purged, so
    -- that undoing brings them back into it.
    deleted_by_run_id text,
    check ((deleted_at_ms is null) = (deleted_by_run_id is null))
) strict;

alter table conversations add column folder_id text references folders (id) on delete set null;
alter table conversations add column is_pinned integer not null default 0 check (is_pinned in (0, 1));
alter table conversations add column archived_at_ms integer;
-- The program, the id there and the time of the last change, of a conversation that was imported: the
-- same one is imported once.
alter table conversations add column imported_from text;

create index conversations_by_folder on conversations (folder_id) where folder_id is not null;
create index conversations_by_origin on conversations (imported_from) where imported_from is not null;

-- Token ids stay the last column: SQLite reads through what stands before the one it wants.
alter table conversations add column new_token_ids blob check (length(new_token_ids) % 4 = 0);
update conversations set new_token_ids = prefix_token_ids where prefix_token_ids is not null;
alter table conversations drop column prefix_token_ids;
alter table conversations rename column new_token_ids to prefix_token_ids;

-- Pinning was of the saved context alone; it is one thing with standing above the others.
update conversations set is_pinned = 1
    where 'conversation/' || id in (select owner from cache_refs where is_pinned = 1);
