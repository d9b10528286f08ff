-- A question asked about each of many texts. `question` is a JSON text of the app's. A job that is
-- paused or has failed says why in `reason`, unless a person has paused it. `temperature` is null
-- until the job is calibrated.
create table jobs (
    id text not null primary key,
    name text not null,
    model text not null,
    question text not null check (json_valid(question)),
    state text not null check (state in ('running', 'paused', 'done', 'failed')),
    reason text,
    temperature real check (temperature > 0),
    created_at_ms integer not null,
    deleted_at_ms integer,
    deleted_by_run_id text
) strict;

-- The texts of a job. `logprobs` is a JSON text of the app's; a row has it and the probability of its
-- likeliest option, or an error, or neither while it waits. `correction` is the place of the option
-- that a person has called correct.
create table job_rows (
    id integer primary key,
    job_id text not null references jobs (id) on delete cascade,
    position integer not null,
    text text not null,
    logprobs text check (json_valid(logprobs)),
    certainty real,
    correction integer,
    error text,
    unique (job_id, position),
    check ((logprobs is null) = (certainty is null) and (logprobs is null or error is null))
) strict;

create index job_rows_by_certainty on job_rows (job_id, certainty, position);
create index job_rows_waiting on job_rows (job_id, position)
    where certainty is null and error is null;
create index job_rows_corrected on job_rows (job_id, position) where correction is not null;
create index job_rows_failed on job_rows (job_id, position) where error is not null;
