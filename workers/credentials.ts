import { takeStoreCredentials } from '../backends/store/index.ts';
import { temporalSecrets, selectEnvironment } from '../core/child-environment.ts';
import { readPayloadKeys, type PayloadKey } from './payload-codec.ts';
import { remoteTemporal, type TemporalSettings } from './temporal-settings.ts';

export interface Credentials {
  readonly temporal: TemporalSettings;
  readonly payloadKeys: readonly PayloadKey[];
}

/**
 * What a worker needs to speak with Temporal and with its store, taken out of `env`: the code of users that runs in this process or
 * in a child of it does not find it there.
 */
export function takeCredentials(env: NodeJS.ProcessEnv = process.env): Credentials {
  const temporal = remoteTemporal(env['TEMPORAL_ADDRESS'] || '127.0.0.1:7233', env);
  const payloadKeys = readPayloadKeys(env);
  for (const name of Object.keys(selectEnvironment(temporalSecrets, env))) delete env[name];
  takeStoreCredentials(env);
  return { temporal, payloadKeys };
}
