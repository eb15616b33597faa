import { type Collector, endpointVariables, type OtlpOptions, OtlpSink } from '../../backends/metrics/otlp.ts';
import { MlflowSink } from '../../backends/metrics/mlflow.ts';
import { trackingServer } from '../../backends/metrics/tracking-server.ts';
import { plainUrl } from '../../host/plain-url.ts';
import type { MlflowSpec, RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { orIfDamaged } from '../../store/objects.ts';
import { rolloutsOfStep } from '../../runs/rollout-index/write-index.ts';
import type { RunPlace } from '../../runs/run-access.ts';

/** Sink of a run; MLflow's own variables supply what its file leaves open. */
export function mlflowSink(
  spec: RunSpec,
  mlflow: MlflowSpec,
  id: string,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): MlflowSink {
  const experiment = mlflow.experiment ?? (environment['MLFLOW_EXPERIMENT_NAME'] || 'ratchet');
  return new MlflowSink({
    trackingUri: () => urlOf(trackingServer(mlflow, environment)),
    ...(mlflow.trackingUri === null ? { variables: ['MLFLOW_TRACKING_URI'] } : {}),
    experiment,
    runName: mlflow.runName ?? spec.name,
    id,
    params: spec,
    environment,
  });
}

function urlOf(server: ReturnType<typeof trackingServer>): string {
  if ('url' in server) return server.url;
  throw new RatchetError('ConfigInvalid', server.why);
}

/**
 * Sink of a run whose collector OpenTelemetry's own variables name
 * (opentelemetry.io/docs/specs/otel/protocol/exporter); null without them. The operator of the processes sets them, not
 * a run file.
 */
export function otlpSink(
  spec: RunSpec,
  { id, episodesOf }: { readonly id: string; readonly episodesOf: OtlpOptions['episodes']['of'] },
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): OtlpSink | null {
  const named = ['OTEL_EXPORTER_OTLP_ENDPOINT', ...Object.values(endpointVariables)].some((name) => environment[name]);
  if (!named || /^true$/i.test(environment['OTEL_SDK_DISABLED'] ?? '')) return null;
  const collector = (): Collector => ({
    traces: postedTo('traces', environment),
    metrics: postedTo('metrics', environment),
  });
  const resource: OtlpOptions['resource'] = {
    ...pairsIn(environment['OTEL_RESOURCE_ATTRIBUTES']),
    ...(environment['OTEL_SERVICE_NAME'] ? { 'service.name': environment['OTEL_SERVICE_NAME'] } : {}),
    'rl.system': 'ratchet',
    'rl.run.id': spec.name,
    'rl.algorithm': spec.loss.type,
    'rl.model.name': spec.model,
    'rl.environment.name': spec.environments.map(({ name }) => name).join(','),
  };
  const headersOf = (signal: keyof Collector): Record<string, string> =>
    pairsIn(
      environment[`OTEL_EXPORTER_OTLP_${signal.toUpperCase()}_HEADERS`] ?? environment['OTEL_EXPORTER_OTLP_HEADERS'],
    );
  const headers = { traces: headersOf('traces'), metrics: headersOf('metrics') };
  const episodes = { share: spec.opentelemetry?.rollouts ?? 1, of: episodesOf };
  return new OtlpSink({ collector, headers, environment, resource, id, episodes });
}

/**
 * Without the rollouts of a step that cannot be read because they or its commit are damaged; its metrics are sent all
 * the same.
 */
export function episodesOf(run: RunPlace, log: (line: string) => void): OtlpOptions['episodes']['of'] {
  return (lineage, step) =>
    orIfDamaged(
      () => rolloutsOfStep({ ...run, lineage }, step),
      (why) => {
        log(`opentelemetry: rollouts of step ${step} are left out: ${why}`);
        return [];
      },
    );
}

function postedTo(signal: keyof Collector, environment: Readonly<NodeJS.ProcessEnv>): string | null {
  if (environment[`OTEL_${signal.toUpperCase()}_EXPORTER`] === 'none') return null;
  const protocol =
    environment[`OTEL_EXPORTER_OTLP_${signal.toUpperCase()}_PROTOCOL`] ?? environment['OTEL_EXPORTER_OTLP_PROTOCOL'];
  if (protocol === 'grpc') {
    throw new RatchetError(
      'ConfigInvalid',
      'OTEL_EXPORTER_OTLP_PROTOCOL: expected "http/json" or "http/protobuf", got "grpc": Ratchet sends OTLP over HTTP. Collectors take that at port 4318.',
    );
  }
  const own = environment[endpointVariables[signal]];
  if (own) return collectorUrl(own, endpointVariables[signal]).href;
  const base = environment['OTEL_EXPORTER_OTLP_ENDPOINT'];
  if (!base) return null;
  const url = collectorUrl(base, 'OTEL_EXPORTER_OTLP_ENDPOINT');
  url.pathname = `${url.pathname.replace(/\/+$/, '')}/v1/${signal}`;
  return url.href;
}

function collectorUrl(written: string, variable: string): URL {
  const url = plainUrl(written);
  if (url !== null) return url;
  throw new RatchetError(
    'ConfigInvalid',
    `${variable}: expected the URL of a collector that takes OTLP over HTTP, such as "http://127.0.0.1:4318", without a password in it. Keys go into OTEL_EXPORTER_OTLP_HEADERS.`,
  );
}

/** `key=value,key=value`, percent-encoded. */
function pairsIn(text = ''): Record<string, string> {
  const pairs = text.split(',').flatMap((pair) => {
    const at = pair.indexOf('=');
    return at < 1 ? [] : [[pair.slice(0, at).trim(), decoded(pair.slice(at + 1).trim())] as const];
  });
  return Object.fromEntries(pairs);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
