import type { RunSpec } from '../../config/run-spec.ts';
import type { AskedServer } from '../../engine/grants.ts';
import type { MetricsRow } from '../../runs/metrics.ts';
import type { NumberedRow } from '../../runs/metrics-feed.ts';
import { webhookServers } from '../webhook.ts';

/** Where metrics go besides `metrics.jsonl`: a projection that may be made again at any time. */
export interface MetricsSink {
  readonly name: string;
  /** The number of the row it wants next, as what it wrote itself says; `cursor` is what was noted of it, where it cannot say. */
  open(cursor: number): Promise<number>;
  /** Takes rows in the order of their numbers; each is given once, unless the sink is opened again. */
  send(rows: readonly NumberedRow[]): Promise<void>;
  /** What there is to know beside: where it is shown. */
  place(): string | null;
  /** `isRunOver`: no further rows will come, and it has them all. */
  close(isRunOver: boolean): Promise<void>;
}

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

/** Its client gets the key from this variable, or from where `wandb login` left it. */
export function wandbServer(environment: Readonly<NodeJS.ProcessEnv>): Pick<AskedServer, 'url' | 'keys'> {
  return { url: environment['WANDB_BASE_URL'] || 'https://api.wandb.ai', keys: ['WANDB_API_KEY'] };
}

/** Variables that MLflow's own client reads. */
const mlflowKeys = ['MLFLOW_TRACKING_TOKEN', 'MLFLOW_TRACKING_USERNAME', 'MLFLOW_TRACKING_PASSWORD'];

/** When a row came to be, ms since 1970; an evaluation's row has no time of its own. */
export function timeOf({ time }: MetricsRow): number {
  const at = typeof time === 'string' ? Date.parse(time) : Number.NaN;
  return Number.isFinite(at) ? at : Date.now();
}
