-- Who holds which place in the prompt cache, prompt caches with a name, and conversations that begin with one.

-- Who wrote its tokens. Older rows do not say; as answers they are the first to be evicted.
alter table chunks add column kind text not null default 'assistant' check (kind in ('system', 'user', 'assistant'));
-- What its contents depend on beside model and tokens; empty for plain keys and values.
alter table chunks add column variant text not null default '';
-- Where the keys and values of sliding-window layers begin in it; the chunk's start when it holds no earlier ones.
alter table chunks add column held_from integer not null default 0;
-- Whether it also holds the recurrent state at its end.
alter table chunks add column has_state integer not null default 0 check (has_state in (0, 1));
alter table chunks add column hits integer not null default 0;
update chunks set held_from = start;

create table anchors (
    -- "conversation/<id>" or "named/<id>". No foreign key: an anchor outlives its holder until its chunks are purged.
    owner text not null primary key,
    fingerprint text not null,
    variant text not null,
    model text not null,
    -- The last chunk of what is kept; null when nothing is. No foreign key: eviction may take a chunk first.
    chunk_key text,
    num_tokens integer not null,
    is_pinned integer not null check (is_pinned in (0, 1)),
    lost_tokens integer not null,
    lost_reason text,
    lost_at_ms integer
) strict;

create table named_caches (
    id text not null primary key,
    name text not null,
    model text not null,
    fingerprint text not null,
    variant text not null,
    kind text not null check (kind in ('prompt', 'conversation')),
    num_tokens integer not null,
    title text not null,
    start_text text not null,
    end_text text not null,
    imported_from text,
    created_at_ms integer not null,
    last_used_at_ms integer not null,
    deleted_at_ms integer,
    -- The run that deleted it and may still undo that.
    deleted_by_run_id text,
    -- Null where an imported file did not say them. The last column: SQLite reads through what stands before the one it wants.
    token_ids blob check (length(token_ids) % 4 = 0),
    check ((deleted_at_ms is null) = (deleted_by_run_id is null))
) strict;

-- A deleted one gives its name free.
create unique index named_caches_by_name on named_caches (name) where deleted_at_ms is null;

-- The named prompt cache that a conversation begins with, copied: it may be renamed or deleted later. All null without one.
alter table conversations add column prefix_named_id text;
alter table conversations add column prefix_name text;
alter table conversations add column prefix_kind text check (prefix_kind in ('prompt', 'conversation'));
alter table conversations add column prefix_variant text;
alter table conversations add column prefix_num_tokens integer;
alter table conversations add column prefix_start_text text;
alter table conversations add column prefix_end_text text;
alter table conversations add column prefix_is_imported integer check (prefix_is_imported in (0, 1));
-- The last one again, so that the list of conversations never reads it.
alter table conversations add column prefix_token_ids blob check (length(prefix_token_ids) % 4 = 0);
