-- To be run once on a database that was put back from a dump, before a master starts on it:
--   psql -d ebbtide -f after_restore.sql
-- Agents take no orders from a master whose epoch is lower than they know, and ids of jobs that were submitted since the
-- dump was taken must not be given out again.
BEGIN;
UPDATE ebbtide.leader SET epoch = epoch + 1000;
INSERT INTO ebbtide.meta VALUES ('restored', extract(epoch FROM now())::text)
    ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value;
INSERT INTO ebbtide.events
    SELECT max(sequence) + 1, greatest(max(time), extract(epoch FROM now())), 'JournalRestored', '', '',
        json_build_object('taken', max(time), 'skipped', 100000)::text
    FROM ebbtide.events HAVING max(sequence) IS NOT NULL;
COMMIT;
