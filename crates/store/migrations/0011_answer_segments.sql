-- What a person is shown of an answer, as a JSON text of the app's; null where that is its text and
-- nothing else. `text` is what the next prompt is made of.
alter table messages add column segments text check (json_valid(segments));
