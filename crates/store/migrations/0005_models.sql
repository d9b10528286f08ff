-- Downloads that have not ended, in the order in which they were added.
create table downloads (
    id integer primary key,
    repo text not null unique,
    is_paused integer not null check (is_paused in (0, 1))
) strict;

-- What was learned by opening a model's files once, by their identity.
create table model_checks (
    identity text not null primary key,
    verdict text not null check (json_valid(verdict)),
    checked_at_ms integer not null
) strict;

-- Folders whose models are listed besides those of Cairn and of the shared cache.
create table model_folders (
    path text not null primary key
) strict;
