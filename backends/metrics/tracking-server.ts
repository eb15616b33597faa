import { readFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { RunSpec } from '../../config/run-spec.ts';
import { plainUrl } from '../../host/plain-url.ts';

type Variables = Readonly<NodeJS.ProcessEnv>;

/** The MLflow tracking server of a run: from its file, else from MLflow's own variable. `why`: there is none. */
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

/** A warning before a run whose workers are started from here; null if all is well. */
export function whyNotTracked(
  { mlflow, wandb }: Pick<RunSpec, 'mlflow' | 'wandb'>,
  environment: Variables = process.env,
  home: string = os.homedir(),
): string[] {
  const isSet = (name: string): boolean => (environment[name] ?? '') !== '';
  if (isSet('TEMPORAL_ADDRESS')) return []; // workers elsewhere have variables of their own
  const server = mlflow && trackingServer(mlflow, environment);
  const hasKey = isSet('WANDB_API_KEY') || isSet('WANDB_API_KEY_FILE') || wandbLogin(environment, home) !== null;
  return [
    ...(server && 'why' in server ? [`no metrics would go to MLflow: ${server.why}`] : []),
    ...(wandb && (wandb.mode ?? 'online') === 'online' && !hasKey
      ? [
          'metrics for W&B would stay in files of this machine: expected a key in WANDB_API_KEY or from `wandb login`, found none. Set it, or write [wandb] mode = "offline"',
        ]
      : []),
  ];
}

/** The netrc file that has a login of W&B's server; null without one. */
export function wandbLogin(environment: Variables, home: string): string | null {
  const named = environment['NETRC'];
  const file = named === undefined || named === '' ? path.join(home, '.netrc') : named;
  try {
    const host = new URL(environment['WANDB_BASE_URL'] || 'https://api.wandb.ai').hostname;
    const machines = readFileSync(file, 'utf8').matchAll(/\bmachine\s+(\S+)/g);
    return [...machines].some(([, machine]) => machine === host) ? file : null;
  } catch {
    return null; // no such file, or none that may be read
  }
}
