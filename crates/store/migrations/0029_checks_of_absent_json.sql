-- `json_valid(null)` is null since SQLite 3.45, which a check accepts, and was 0 before. An older SQLite
-- reports a healthy row without JSON as damaged. Only the text of the checks changes and no row, which
-- https://www.sqlite.org/lang_altertable.html#making_other_kinds_of_table_schema_changes allows.
pragma writable_schema = on;
update sqlite_schema
    set sql = replace(sql, 'check (json_valid(segments))', 'check (segments is null or json_valid(segments))')
    where type = 'table' and name = 'messages';
update sqlite_schema
    set sql = replace(sql, 'check (json_valid(logprobs))', 'check (logprobs is null or json_valid(logprobs))')
    where type = 'table' and name = 'job_rows';
-- A change that SQLite makes itself tells other connections to read the tables again.
create view checks_changed as select 1 as changed;
drop view checks_changed;
pragma writable_schema = reset;
