-- What the error of an answer says, as a JSON text of the app's, where that is common.
alter table messages add column error_kind text;
