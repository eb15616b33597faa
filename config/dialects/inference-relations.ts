import { secretHeadersIn } from '../model-access.ts';
import { rotate } from '../report-secrets.ts';
import { needsFullWeights, vllmArgumentsKept } from '../vllm-spec.ts';
import type { RatchetConfig } from '../settings/index.ts';
import { copiesOf, serverGpus, weightsTaken } from '../settings/inference.ts';
import type { RelationProblem } from './ratchet-relations.ts';

/** What [inference] says of its servers, taken together. */
export function inferenceRelations(config: RatchetConfig): RelationProblem[] {
  const { inference } = config;
  const takesFullWeights = needsFullWeights(weightsTaken(config));
  return [...placeRelations(inference), ...headerRelations(inference), ...vllmRelations(inference, takesFullWeights)];
}

type Written = RatchetConfig['inference'];

const at = (...keys: (string | number)[]) => ['inference', ...keys];

/** Where the servers are is said once. */
function placeRelations({ kind, url, endpoint_id, endpoints_path, api_key_var }: Written): RelationProblem[] {
  const problems: RelationProblem[] = [];
  if (kind === 'module' || kind === 'tinker') return problems;
  if (url !== undefined && endpoint_id !== undefined) {
    problems.push({
      paths: [at('endpoint_id'), at('url')],
      expected: 'nothing, or no url: both say where the servers are',
      received: JSON.stringify(endpoint_id),
    });
  }
  if (endpoints_path !== undefined && endpoint_id === undefined) {
    problems.push({
      paths: [at('endpoints_path'), at('endpoint_id')],
      expected: 'an endpoint_id beside it: which of its aliases is meant',
      received: JSON.stringify(endpoints_path),
    });
  }
  if (api_key_var !== undefined && endpoint_id !== undefined) {
    problems.push({
      paths: [at('api_key_var'), at('endpoint_id')],
      expected: 'nothing: each [[endpoint]] names its key itself',
      received: JSON.stringify(api_key_var),
    });
  }
  if (kind === 'openai' && url === undefined && endpoint_id === undefined) {
    problems.push({
      paths: [at('url'), at('kind')],
      expected: 'url or endpoint_id, because kind is "openai": where its servers are',
      received: 'nothing',
    });
  }
  const urls = Array.isArray(url) ? url : [];
  const twice = urls.findIndex((one, i) => urls.indexOf(one) < i);
  if (twice >= 0) {
    problems.push({
      paths: [at('url', twice), at('url')],
      expected: 'each server once',
      received: JSON.stringify(urls[twice]),
    });
  }
  return problems;
}

/** Of a vLLM: what Ratchet says itself, what only it has, and where it may listen. */
function vllmRelations(written: Written, takesFullWeights: boolean): RelationProblem[] {
  const { kind, vllm = {}, program, weights_agent, api_key_var, url, endpoint_id } = written;
  const host = written.host ?? (typeof vllm['host'] === 'string' ? vllm['host'] : undefined);
  if (kind !== 'vllm') {
    return Object.entries({ program, weights_agent })
      .filter(([, value]) => value !== undefined)
      .map(([key, value]) => ({
        paths: [at(key), at('kind')],
        expected: 'kind = "vllm" beside it: others have no such setting',
        received: JSON.stringify(value),
      }));
  }
  const problems: RelationProblem[] = Object.keys(vllm)
    .filter((key) => Object.hasOwn(vllmArgumentsKept, key.replaceAll('-', '_')))
    .map((key) => ({
      paths: [at('vllm', key), at('vllm')],
      expected: vllmArgumentsKept[key.replaceAll('-', '_')]!,
      received: key === 'api_key' ? 'a value (not repeated here)' : JSON.stringify(vllm[key]),
    }));
  if (Number(vllm['api_server_count'] ?? 1) > 1) {
    problems.push({
      paths: [at('vllm', 'api_server_count'), at('vllm')],
      expected: '1: each of several API processes knows the adapters and the weights alone that were given through it',
      received: JSON.stringify(vllm['api_server_count']),
    });
  }
  const isStarted = url === undefined && endpoint_id === undefined;
  if (program !== undefined && !isStarted) {
    problems.push({
      paths: [at('program'), at('url'), at('endpoint_id')],
      expected: 'nothing: these servers run already, and none is started',
      received: JSON.stringify(program),
    });
  }
  if (isStarted) problems.push(...gpuRelations(written));
  if (host === undefined || isLoopback(host) || !isStarted) return problems;
  if (api_key_var === undefined) {
    problems.push({
      paths: [at('host'), at('api_key_var')],
      expected: 'api_key_var beside it: a server that others can reach asks for a key',
      received: JSON.stringify(host),
    });
  } else if (takesFullWeights) {
    problems.push({
      paths: [at('host')],
      expected:
        'a loopback address: full weights reach vLLM by its development routes, which ask for no key and obey whoever reaches them; [lora] without [sft] needs none of them',
      received: JSON.stringify(host),
    });
  }
  return problems;
}

/** Each copy of the model has GPUs of its own, and none is left over. */
function gpuRelations(written: Written): RelationProblem[] {
  const gpus = serverGpus(written)?.length;
  if (!gpus) return [];
  const { gpusEach, copies } = copiesOf(written.vllm ?? {});
  const fits = copies === null ? gpus % gpusEach === 0 : gpusEach * copies <= gpus;
  if (fits) return [];
  const key = gpusEach > 1 ? 'tensor_parallel_size' : 'data_parallel_size';
  const all = `${gpusEach} for each copy of the model${copies === null ? '' : `, ${copies} copies`}`;
  return [
    {
      paths: [at('vllm', key), at('vllm'), at(written.gpu_ids ? 'gpu_ids' : 'gpus')],
      expected: `what fits the ${gpus} GPUs of the server (gpu_ids, gpus)`,
      received: all,
    },
  ];
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || host.startsWith('127.');
}

function headerRelations({ headers }: Written): RelationProblem[] {
  return secretHeadersIn(headers).map((name) => ({
    paths: [at('headers', name), at('headers')],
    expected: 'no header with a key in it: name its environment variable in headers_from_env, or in api_key_var',
    received: 'a value (not repeated here)',
    suggestion: rotate,
  }));
}
