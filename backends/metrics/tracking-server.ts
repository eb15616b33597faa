import type { RunSpec } from '../../config/run-spec.ts';
import { plainUrl } from '../plain-url.ts';

type Variables = Readonly<NodeJS.ProcessEnv>;

/** The tracking server of MLflow that a run feeds: what its file leaves open, MLflow's own variable says. `why`: there is none. */
export function trackingServer(
  mlflow: NonNullable<RunSpec['mlflow']>,
  environment: Variables,
): { readonly url: string } | { readonly why: string } {
  const written = mlflow.trackingUri ?? environment['MLFLOW_TRACKING_URI'] ?? null;
  const plain = written === null ? null : plainUrl(written);
  if (plain !== null) return { url: plain.href };
  const url = written !== null && URL.canParse(written) ? new URL(written) : null;
  const got =
    written === null
      ? 'nothing'
      : url === null
        ? JSON.stringify(written)
        : `one that begins ${url.protocol}//${url.username ? '…@' : ''}`;
  return {
    why: `[mlflow] needs the URL of a tracking server, http:// or https:// without a password in it, in mlflow.tracking_uri or MLFLOW_TRACKING_URI; got ${got}. Start one: mlflow server --port 5000`,
  };
}

/** Before a run, where its workers are started from here; null where nothing is to be said. */
export function whyNotTracked(
  { mlflow }: Pick<RunSpec, 'mlflow'>,
  environment: Variables = process.env,
): string | null {
  const server = mlflow && trackingServer(mlflow, environment);
  return server && 'why' in server ? `no metrics would go to MLflow: ${server.why}` : null;
}
