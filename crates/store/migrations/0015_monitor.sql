-- What the monitor shows of the last day beyond the figures of answers: a row for a minute in which
-- something was computed or memory changed. `figures` is a JSON text of the app's. Rows are numbered
-- in the order in which they were written: clocks jump.
create table monitor_minutes (
    id integer primary key,
    at_ms integer not null,
    figures text not null check (json_valid(figures))
) strict;

create index monitor_minutes_by_time on monitor_minutes (at_ms);
-- The figures of the last day's answers are read without the older messages.
create index messages_with_stats_by_time on messages (created_at_ms) where stats is not null;
