import { z } from 'zod';
import { inferenceConcurrencyDefault, inferenceTimeoutDefaultS } from '../../core/limits.ts';
import { accessDefaults } from '../../core/eval/model-access.ts';
import { headersFromEnv, headerTable, keyVariable, serverUrls, variableName } from '../models/model-access.ts';
import { choice, positive, text, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { serversBound } from './run.ts';
import { inSpec, setting, specFields } from './setting.ts';

/** Settings of `[inference]` that name the servers; one server is a pool of one. */

export const places = {
  url: setting(serverUrls(), 'servers that run already, with or without `/v1`; else the worker’s `--policy-url`'),
  endpoint_id: setting(
    text(),
    'in place of `url`: an alias of `endpoints_path`, all of whose servers are asked; they may join and leave while the run runs',
  ),
  endpoints_path: setting(
    text(),
    '`endpoints.toml`, there on every machine with workers; `./configs/endpoints.toml` when missing',
  ),
  api_key_var: setting(variableName(), 'the name of the environment variable with the servers’ key'),
};

export const requests = {
  headers: setting(headerTable(), 'sent with every request; none with a key in it', { default: {} }),
  headers_from_env: setting(
    headersFromEnv(),
    'headers whose values are in environment variables, by name of the header',
    { default: {} },
  ),
  timeout: setting(positive(), 'seconds a request may take; then it is asked again', {
    default: inferenceTimeoutDefaultS,
    as: 'timeoutS',
  }),
  max_concurrent: setting(whole(1), 'prompts in flight at one server; more wait for their turn', {
    default: inferenceConcurrencyDefault,
    most: serversBound,
  }),
  provider: setting(choice('cpu', 'cuda'), 'where Ratchet’s policy server computes', { default: 'cpu' }),
  quantize: setting(
    choice('int8', 'int4'),
    'of "embedded": weights are sampled in 8 or 4 bits, of which fewer bytes are read; the sampler is then a little off the trainer, which the canary measures and the loss corrects for; an adapter stays as it is',
    { isLeftOut: true },
  ),
  memory_gb: setting(
    positive(),
    'of "embedded": memory budget of the policy server of `ratchet train` or `ratchet dev`, in GB (10⁹ bytes); with less, more requests and versions wait, and results stay the same. By default 1.5, or a quarter of a small machine, or more if one version of the model needs it (`ratchet check` says)',
    { isLeftOut: true },
  ),
  canary_threshold: setting(
    positive(),
    'how far a server’s logprobs may be from the trainer’s, mean of |Δ| over the canary’s tokens; by default 0.001 where both are known to compute in float32, 0.5 with `quantize`, else 0.05',
    { isLeftOut: true },
  ),
};

/** An alias of an `endpoints.toml` that names the servers. The file is read again when it changes. */
export const EndpointsRef = z.strictObject({
  /** An absolute path. */
  path: z.string().min(1),
  id: z.string().min(1),
});
export type EndpointsRef = z.infer<typeof EndpointsRef>;

export function endpointsSpec({
  endpoint_id: id,
  endpoints_path: path = accessDefaults.endpointsPath,
}: {
  readonly endpoint_id?: string | undefined;
  readonly endpoints_path?: string | undefined;
}): EndpointsRef | null {
  return id === undefined ? null : { path, id };
}

export const ServerPoolSpec = z.strictObject({
  /** Base URLs of running servers; null = the policy server that `ratchet dev` started. */
  url: z.union([z.url(), z.array(z.url()).min(1)]).nullable(),
  /** Replaces `url`. */
  endpoints: EndpointsRef.nullable().default(null),
  /** Name of the environment variable with the key; null = no key is needed. */
  apiKeyVar: z.string().nullable().default(null),
  ...specFields(requests),
});

export function serverPoolSpec({ inference }: Pick<RatchetConfig, 'inference'>): z.infer<typeof ServerPoolSpec> {
  return {
    url: inference.url ?? null,
    endpoints: endpointsSpec(inference),
    apiKeyVar: keyVariable(inference.api_key_var, null),
    ...inSpec(requests, inference),
  };
}
