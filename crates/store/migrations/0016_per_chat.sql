-- What a chat is answered with: presets and personas; and where its prompts begin when it has outgrown
-- the model's context.

-- Named values of settings: a JSON object by key.
create table presets (
    id text not null primary key,
    name text not null,
    setting_overrides text not null,
    created_at_ms integer not null,
    deleted_at_ms integer,
    -- The run that deleted it and may still undo that.
    deleted_by_run_id text,
    check ((deleted_at_ms is null) = (deleted_by_run_id is null))
) strict;

create table personas (
    id text not null primary key,
    name text not null,
    -- What conversations that are begun with it begin with; empty and null: nothing.
    system_prompt text not null,
    model text,
    -- As those of a preset; null without any.
    setting_overrides text,
    created_at_ms integer not null,
    deleted_at_ms integer,
    -- Its conversations name it until it is purged, so that undoing gives it back to them.
    deleted_by_run_id text,
    check ((deleted_at_ms is null) = (deleted_by_run_id is null))
) strict;

-- Beside the conversations, whose last column, token ids, can be long.
create table conversation_personas (
    conversation_id text not null primary key references conversations (id) on delete cascade,
    persona_id text not null references personas (id) on delete cascade
) strict;

create index conversation_personas_by_persona on conversation_personas (persona_id);

-- A branch with this message is read from it on; of several the last one counts. With a summary that
-- stands for what is before it, otherwise nothing does.
create table context_cuts (
    message_id text not null primary key references messages (id) on delete cascade,
    summary text,
    created_at_ms integer not null
) strict;
