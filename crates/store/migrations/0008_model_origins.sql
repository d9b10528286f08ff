-- The hub that a model was downloaded from, by the cache's folder and the model's name: scheme, host
-- and port. A model that another program or an earlier version downloaded has no row.
create table model_origins (
    cache text not null,
    repo text not null,
    origin text not null,
    primary key (cache, repo)
) strict;
