import { inferenceTraits } from '../../../core/kinds/inference.ts';
import { secretHeadersIn } from '../../models/model-access.ts';
import { rotate } from '../../toml/report-secrets.ts';
import { needsFullWeights, vllmArgumentsKept } from '../../models/vllm-spec.ts';
import type { RatchetConfig } from '../index.ts';
import { copiesOf, serverGpus, weightsTaken } from '../inference.ts';
import { problem, type Relations } from './problem.ts';

/** Relations between the settings of [inference]. */
export function* inferenceRelations(config: RatchetConfig): Relations {
  const { inference } = config;
  yield* placeRelations(inference);
  for (const name of secretHeadersIn(inference.headers)) {
    const expected = 'no header with a key in it: name its environment variable in headers_from_env, or in api_key_var';
    const at = [['inference', 'headers', name], 'inference.headers'];
    yield problem(at, expected, 'a value (not repeated here)', rotate);
  }
}

type Written = RatchetConfig['inference'];

/** Servers may be named in only one way. */
function* placeRelations({ kind, url, endpoint_id, endpoints_path, api_key_var }: Written): Relations {
  const { asks, starts } = inferenceTraits({ kind });
  if (asks !== 'servers') return;
  if (url !== undefined && endpoint_id !== undefined) {
    const expected = 'nothing, or no url: both say where the servers are';
    yield problem(['inference.endpoint_id', 'inference.url'], expected, JSON.stringify(endpoint_id));
  }
  if (endpoints_path !== undefined && endpoint_id === undefined) {
    const expected = 'an endpoint_id beside it: which of its aliases is meant';
    yield problem(['inference.endpoints_path', 'inference.endpoint_id'], expected, JSON.stringify(endpoints_path));
  }
  if (api_key_var !== undefined && endpoint_id !== undefined) {
    const expected = 'nothing: each [[endpoint]] names its key itself';
    yield problem(['inference.api_key_var', 'inference.endpoint_id'], expected, JSON.stringify(api_key_var));
  }
  if (starts === null && url === undefined && endpoint_id === undefined) {
    const expected = `url or endpoint_id, because kind is "${kind}": where its servers are`;
    yield problem(['inference.url', 'inference.kind'], expected, 'nothing');
  }
  const urls = Array.isArray(url) ? url : [];
  const twice = urls.findIndex((one, i) => urls.indexOf(one) < i);
  if (twice >= 0)
    yield problem([`inference.url.${twice}`, 'inference.url'], 'each server once', JSON.stringify(urls[twice]));
}

/** Quantized weights are computed on the CPU only. */
export function* embeddedRelations({ inference: { quantize, provider } }: RatchetConfig): Relations {
  if (quantize === undefined || provider !== 'cuda') return;
  const expected = 'nothing beside provider = "cuda"';
  yield problem(['inference.quantize', 'inference.provider'], expected, JSON.stringify(quantize));
}

/** vLLM arguments that Ratchet sets itself, and addresses to listen on. */
export function* vllmRelations(config: RatchetConfig): Relations {
  const { inference: written } = config;
  const { vllm = {}, program, api_key_var, url, endpoint_id } = written;
  for (const [key, value] of Object.entries(vllm)) {
    const name = key.replaceAll('-', '_');
    if (!Object.hasOwn(vllmArgumentsKept, name)) continue;
    const received = key === 'api_key' ? 'a value (not repeated here)' : JSON.stringify(value);
    yield problem([['inference', 'vllm', key], 'inference.vllm'], vllmArgumentsKept[name]!, received);
  }
  if (Number(vllm['api_server_count'] ?? 1) > 1) {
    const expected =
      '1: each of several API processes knows the adapters and the weights alone that were given through it';
    const received = JSON.stringify(vllm['api_server_count']);
    yield problem(['inference.vllm.api_server_count', 'inference.vllm'], expected, received);
  }
  const isStarted = url === undefined && endpoint_id === undefined;
  if (program !== undefined && !isStarted) {
    const expected = 'nothing: these servers run already, and none is started';
    yield problem(['inference.program', 'inference.url', 'inference.endpoint_id'], expected, JSON.stringify(program));
  }
  if (!isStarted) return;
  yield* gpuRelations(written);
  const host = written.host ?? (typeof vllm['host'] === 'string' ? vllm['host'] : undefined);
  if (host === undefined || isLoopback(host)) return;
  if (api_key_var === undefined) {
    const expected = 'api_key_var beside it: a server that others can reach asks for a key';
    yield problem(['inference.host', 'inference.api_key_var'], expected, JSON.stringify(host));
  } else if (needsFullWeights(weightsTaken(config))) {
    const expected =
      'a loopback address: full weights reach vLLM by its development routes, which ask for no key and obey every client that reaches them; [lora] without [sft] needs none of them';
    yield problem('inference.host', expected, JSON.stringify(host));
  }
}

/** Each copy of the model has GPUs of its own, and none is unused. */
function* gpuRelations(written: Written): Relations {
  const gpus = serverGpus(written)?.length;
  if (!gpus) return;
  const { gpusEach, copies } = copiesOf(written.vllm ?? {});
  if (copies === null ? gpus % gpusEach === 0 : gpusEach * copies <= gpus) return;
  const key = gpusEach > 1 ? 'tensor_parallel_size' : 'data_parallel_size';
  yield problem(
    [`inference.vllm.${key}`, 'inference.vllm', `inference.${written.gpu_ids ? 'gpu_ids' : 'gpus'}`],
    `what fits the ${gpus} GPUs of the server (gpu_ids, gpus)`,
    `${gpusEach} for each copy of the model${copies === null ? '' : `, ${copies} copies`}`,
  );
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || host.startsWith('127.');
}
