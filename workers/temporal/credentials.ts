import { takeStoreCredentials } from '../../store/index.ts';
import { isSecretVariable } from '../../config/toml/secrets.ts';
import { hideSecrets } from '../../host/hide-secrets.ts';
import { temporalSecrets, selectEnvironment } from '../../core/child-environment.ts';
import { readPayloadKeys, type PayloadKey } from './payload-codec.ts';
import { remoteTemporal, type TemporalSettings } from './temporal-settings.ts';

export interface Credentials {
  readonly temporal: TemporalSettings;
  readonly payloadKeys: readonly PayloadKey[];
}

/**
 * Removes from `env` what a worker needs for Temporal and its store, so that users' code in this process or its
 * children cannot read it.
 */
export function takeCredentials(env: NodeJS.ProcessEnv = process.env): Credentials {
  if (env === process.env) hideSecrets(Object.keys(env).filter((name) => isSecretVariable(name, env[name])));
  const address = env['TEMPORAL_ADDRESS'] || '127.0.0.1:7233';
  const own = selectEnvironment(['TEMPORAL_*'], env);
  const temporal = remoteTemporal(address, own);
  const payloadKeys = readPayloadKeys(env);
  for (const name of Object.keys(selectEnvironment(temporalSecrets, env))) delete env[name];
  takeStoreCredentials(env);
  return { temporal, payloadKeys };
}
