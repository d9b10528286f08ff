-- Everything the first version keeps. Later versions add files beside this one and never change it.

create table conversations (
    id text not null primary key,
    title text not null,
    system_prompt text not null,
    -- The end of the branch on screen.
    leaf_message_id text,
    -- Grows with every turn of any conversation. The list is ordered by it, because clocks jump.
    activity_seq integer not null,
    created_at_ms integer not null,
    updated_at_ms integer not null,
    deleted_at_ms integer,
    -- The run that deleted it and may still undo that.
    deleted_by_run_id text,
    check ((deleted_at_ms is null) = (deleted_by_run_id is null)),
    foreign key (id, leaf_message_id) references messages (conversation_id, id)
) strict;

create index conversations_by_activity on conversations (activity_seq);
-- Purging a long conversation looks here once for each of its messages.
create index conversations_by_leaf on conversations (id, leaf_message_id);

create table messages (
    -- The order of messages. Autoincrement, so that the number of a purged message is never used again.
    seq integer primary key autoincrement,
    id text not null unique,
    conversation_id text not null references conversations (id) on delete cascade,
    parent_id text,
    role text not null check (role in ('system', 'user', 'assistant')),
    status text not null check (status in ('streaming', 'complete', 'stopped', 'interrupted', 'failed')),
    -- The run that is writing a streaming message.
    run_id text,
    text text not null,
    -- Unsigned 32-bit little-endian numbers.
    token_ids blob check (length(token_ids) % 4 = 0),
    error text,
    stats text,
    created_at_ms integer not null,
    check ((status = 'streaming') = (run_id is not null)),
    unique (conversation_id, id),
    -- Both columns, so that a tree never reaches into another conversation. No cascade: a chain of a thousand would exceed SQLite's
    -- limit, and messages only go together with their conversation.
    foreign key (conversation_id, parent_id) references messages (conversation_id, id)
) strict;

create index messages_by_parent on messages (conversation_id, parent_id);
create index messages_by_run on messages (run_id) where run_id is not null;

create table models (
    path text not null primary key,
    name text not null,
    -- Grows with every use of any model.
    use_seq integer not null,
    last_used_at_ms integer not null
) strict;

create table settings (
    key text not null primary key,
    value text not null
) strict;

create table chunks (
    key text not null primary key,
    -- No foreign key: eviction may take a chunk before those that continue it.
    parent_key text,
    fingerprint text not null,
    start integer not null,
    token_ids blob not null check (length(token_ids) % 4 = 0),
    bytes integer not null,
    file_hash text not null,
    created_at_ms integer not null,
    last_used_at_ms integer not null
) strict;
