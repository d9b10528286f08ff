-- The second version of the prompt cache's files, which an earlier one's cannot become: they do not
-- say which chunk they continue. Names of tables and columns follow the code's.

drop table chunks;

create table chunks (
    key text not null primary key,
    -- No foreign key: eviction may take a chunk before those that continue it.
    parent_key text,
    fingerprint text not null,
    -- How keys and values are stored: 'plain', or for example 'kv8g64'.
    kv_format text not null,
    -- Who computed them: 'computed', 'import:<hash>' or 'opaque:<hash>'.
    provenance text not null,
    kind text not null check (kind in ('system', 'user', 'assistant')),
    start integer not null,
    -- Where the keys and values of sliding-window layers begin; the chunk's start without such layers.
    held_from integer not null,
    -- Whether it also contains the recurrent state at its end.
    has_state integer not null check (has_state in (0, 1)),
    token_ids blob not null check (length(token_ids) % 4 = 0),
    bytes integer not null,
    file_hash text not null,
    created_at_ms integer not null,
    last_used_at_ms integer not null,
    hits integer not null
) strict;

create table cache_refs (
    -- 'conversation/<id>' or 'named/<id>', followed by '#stale:<chunk key>' for a position that the
    -- owner has left. No foreign key: a reference outlives its owner until its chunks are purged.
    owner text not null primary key,
    fingerprint text not null,
    kv_format text not null,
    provenance text not null,
    model text not null,
    -- The last chunk of what is saved; null when nothing is. No foreign key: eviction may take a
    -- chunk first.
    chunk_key text,
    num_tokens integer not null,
    is_pinned integer not null check (is_pinned in (0, 1)),
    lost_tokens integer not null,
    lost_reason text,
    lost_at_ms integer
) strict;

-- What conversations and starting points had saved is read again once, and they say why. References
-- to positions that their owners had left are of no use without chunks.
insert into cache_refs
    select owner, fingerprint,
        case
            when variant like 'file:%' or variant like '@%' or variant = '' then 'plain'
            when instr(variant, '@') > 0 then substr(variant, 1, instr(variant, '@') - 1)
            else variant
        end,
        case
            when variant like 'file:%' then 'opaque:' || substr(variant, 6)
            when instr(variant, '@') > 0 then 'import:' || substr(variant, instr(variant, '@') + 1)
            else 'computed'
        end,
        model, null, 0, is_pinned, max(num_tokens, lost_tokens), 'saved by an earlier version',
        cast(unixepoch('subsec') * 1000 as integer)
    from anchors where instr(owner, '#') = 0;

drop table anchors;

alter table named_caches rename column variant to kv_format;
alter table named_caches add column provenance text not null default 'computed';
update named_caches set
    provenance = case
        when kv_format like 'file:%' then 'opaque:' || substr(kv_format, 6)
        when instr(kv_format, '@') > 0 then 'import:' || substr(kv_format, instr(kv_format, '@') + 1)
        else 'computed'
    end,
    kv_format = case
        when kv_format like 'file:%' or kv_format like '@%' or kv_format = '' then 'plain'
        when instr(kv_format, '@') > 0 then substr(kv_format, 1, instr(kv_format, '@') - 1)
        else kv_format
    end;

-- Token ids stay the last column: SQLite reads through what stands before the one it wants.
alter table named_caches add column new_token_ids blob check (length(new_token_ids) % 4 = 0);
update named_caches set new_token_ids = token_ids;
alter table named_caches drop column token_ids;
alter table named_caches rename column new_token_ids to token_ids;

alter table conversations rename column prefix_variant to prefix_kv_format;
alter table conversations add column prefix_provenance text;
update conversations set
    prefix_provenance = case
        when prefix_kv_format like 'file:%' then 'opaque:' || substr(prefix_kv_format, 6)
        when instr(prefix_kv_format, '@') > 0 then 'import:' || substr(prefix_kv_format, instr(prefix_kv_format, '@') + 1)
        else 'computed'
    end,
    prefix_kv_format = case
        when prefix_kv_format like 'file:%' or prefix_kv_format like '@%' or prefix_kv_format = '' then 'plain'
        when instr(prefix_kv_format, '@') > 0 then substr(prefix_kv_format, 1, instr(prefix_kv_format, '@') - 1)
        else prefix_kv_format
    end
where prefix_kv_format is not null;

alter table conversations add column new_token_ids blob check (length(new_token_ids) % 4 = 0);
update conversations set new_token_ids = prefix_token_ids where prefix_token_ids is not null;
alter table conversations drop column prefix_token_ids;
alter table conversations rename column new_token_ids to prefix_token_ids;
