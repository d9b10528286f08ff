-- Keys for programs that use the API. The key itself is nowhere: `hash` is the BLAKE3 hash of it, in
-- hexadecimal digits. A key that was never used has no `last_used_at_ms`.
create table api_keys (
    id text not null primary key,
    name text not null unique,
    hash text not null unique,
    created_at_ms integer not null,
    last_used_at_ms integer
) strict;
