-- How many runs of Cairn have ended without being closed while a model or a job was at work. `name` is the
-- model's name or the job's id; `build` is the version of Cairn that counted.
create table unclean_ends (
    subject text not null check (subject in ('model', 'job')),
    name text not null,
    build text not null,
    num_ends integer not null check (num_ends > 0),
    primary key (subject, name)
) strict;
