import { readPayloadKeys } from './payload-codec.ts';
import { remoteTemporal } from './temporal-settings.ts';

/** Reports once, before anything starts, what would stop every worker. */
export function refuseBadCredentials(environment: Readonly<NodeJS.ProcessEnv>): void {
  readPayloadKeys(environment);
  const elsewhere = environment['TEMPORAL_ADDRESS'];
  if (elsewhere) remoteTemporal(elsewhere, environment);
}
