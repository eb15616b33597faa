import type { RunSpec } from '../../config/run-spec.ts';
import type { AskedServer } from '../../host/grants.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { webhookServers } from '../webhook.ts';

/** Servers that a run sends its metrics and notices to, with their keys. Those that the environment of its workers names are granted by that. */
export function sinkServers({
  mlflow,
  wandb,
  notify,
}: Pick<RunSpec, 'mlflow' | 'wandb' | 'notify'>): Pick<AskedServer, 'url' | 'keys' | 'as'>[] {
  return [
    ...(mlflow?.trackingUri == null ? [] : [{ url: mlflow.trackingUri, keys: mlflowKeys }]),
    ...(wandb && wandb.mode !== 'disabled' ? [wandbServer({})] : []),
    ...webhookServers(notify),
  ];
}

/** Its client gets the key from this variable, or from `wandb login`. */
export function wandbServer(environment: Readonly<NodeJS.ProcessEnv>): Pick<AskedServer, 'url' | 'keys'> {
  return { url: environment['WANDB_BASE_URL'] || 'https://api.wandb.ai', keys: ['WANDB_API_KEY'] };
}

/** Variables that MLflow's own client reads. */
const mlflowKeys = ['MLFLOW_TRACKING_TOKEN', 'MLFLOW_TRACKING_USERNAME', 'MLFLOW_TRACKING_PASSWORD'];

/** Time of a row, ms since 1970; an evaluation's row has none of its own. */
export function timeOf({ time }: MetricsRow): number {
  const at = typeof time === 'string' ? Date.parse(time) : Number.NaN;
  return Number.isFinite(at) ? at : Date.now();
}
