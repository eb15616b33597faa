import { takeSecrets } from './stack/secrets-pipe.ts';

/** Imported before everything else: some read `process.env` while they are loaded. */
takeSecrets();
