-- Run before any migration, every time one is due. `{schema}` stands for the quoted name of the schema throughout.

DO $body$
BEGIN
    -- CREATE SCHEMA IF NOT EXISTS asks for CREATE on the database even where the schema is there already.
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END
$body$;

CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
