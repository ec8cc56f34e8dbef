-- Format 2. The starts that rates count, for as long as they do.

CREATE TABLE start (
    name text NOT NULL, run uuid NOT NULL, epoch int8 NOT NULL, at int8 NOT NULL, until int8 NOT NULL,
    PRIMARY KEY (name, run, epoch)
);
