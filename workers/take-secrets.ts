import { takeSecretsFolder } from '../host/secrets-folder.ts';
import { takeSecrets } from './stack/secrets-pipe.ts';

/** Imported before everything else: some read `process.env` while they are loaded. */
try {
  takeSecretsFolder();
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(2);
}
takeSecrets();
