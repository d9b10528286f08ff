-- What a person has set for a model, by the model's name: another version of it lies in another
-- folder, and a model has a name before it is used.
create table model_settings (
    name text not null primary key,
    overrides text not null
) strict;

insert into model_settings (name, overrides)
    select name, setting_overrides from models as newest
    where setting_overrides is not null and use_seq = (
        select max(use_seq) from models
        where name = newest.name and setting_overrides is not null
    );
alter table models drop column setting_overrides;
