-- Messages that were deleted and can be brought back until the run that deleted them has ended: alone, or
-- with all that follows. `leaf_before` is the end of the branch that was on screen.
create table message_deletions (
    id text not null primary key,
    conversation_id text not null references conversations (id) on delete cascade,
    leaf_before text not null,
    deleted_by_run_id text not null
) strict;

create index message_deletions_by_conversation on message_deletions (conversation_id);

-- The deletion that hides it; null: it is there.
alter table messages add column deletion_id text references message_deletions (id) on delete set null;
-- Grows whenever it becomes the end of the branch on screen; null: it never was, or before this column.
alter table messages add column shown_seq integer;
-- The model that writes it. An answer that was interrupted has no figures to say so; null in older rows.
alter table messages add column model text;

-- The tree of a conversation without its texts.
create index messages_as_tree on messages (conversation_id, seq, id, parent_id, shown_seq, deletion_id);
create index messages_by_deletion on messages (deletion_id) where deletion_id is not null;
