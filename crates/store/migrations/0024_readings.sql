-- How fast documents were read before a question was there: no answer has these figures, and without them
-- nobody knows what the answers save that continue from there. Rows are numbered in the order in which
-- they were written: clocks jump.
create table readings (
    id integer primary key,
    model text not null,
    num_tokens integer not null check (num_tokens > 0),
    tps real not null check (tps > 0),
    at_ms integer not null
) strict;

create index readings_by_model on readings (model, id);
