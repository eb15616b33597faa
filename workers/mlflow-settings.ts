import { MlflowSink } from '../backends/metrics/mlflow.ts';
import type { MlflowSpec, RunSpec } from '../config/run-spec.ts';
import { RatchetError } from '../core/errors.ts';

/** The sink of a run; what its file leaves open, the variables of MLflow's own client say. */
export function mlflowSink(
  spec: RunSpec,
  mlflow: MlflowSpec,
  id: string,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): MlflowSink {
  const trackingUri = mlflow.trackingUri ?? environment['MLFLOW_TRACKING_URI'] ?? null;
  const experiment = mlflow.experiment ?? (environment['MLFLOW_EXPERIMENT_NAME'] || 'ratchet');
  return new MlflowSink({
    trackingUri: () => requireServer(trackingUri),
    experiment,
    runName: mlflow.runName ?? spec.name,
    id,
    params: spec,
    environment,
  });
}

function requireServer(trackingUri: string | null): string {
  const url = trackingUri !== null && URL.canParse(trackingUri) ? new URL(trackingUri) : null;
  if (url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '') return url.href;
  const got =
    trackingUri === null
      ? 'nothing'
      : url === null
        ? JSON.stringify(trackingUri)
        : `one that begins ${url.protocol}//${url.username ? '…@' : ''}`;
  throw new RatchetError(
    'ConfigInvalid',
    `[mlflow] needs the URL of a tracking server, http:// or https:// without a password in it, in mlflow.tracking_uri or MLFLOW_TRACKING_URI; got ${got}. Start one: mlflow server --port 5000`,
  );
}
