import { z } from 'zod';

/** How the API of an endpoint is spoken to, in the words of verifiers. */
export const clientTypes = [
  'openai_completions',
  'openai_chat_completions',
  'openai_chat_completions_token',
  'openai_responses',
  'renderer',
  'anthropic_messages',
  'nemorl_chat_completions',
] as const;
export const ClientType = z.enum(clientTypes);

/** Where servers of these providers are is known by name. */
export const providers = [
  'prime',
  'openrouter',
  'openai',
  'anthropic',
  'minimax',
  'deepseek',
  'glm',
  'local',
  'vllm',
] as const;

/** Which model an evaluation or a prompt optimization asks, and where. What is null is said by the registry of endpoints, else by the provider. */
export const ModelAccessSpec = z
  .strictObject({
    /** An alias of the registry; then `model` is null. */
    endpointId: z.string().min(1).nullable(),
    /** A model's id, or an alias of the registry. */
    model: z.string().min(1).nullable(),
    /** The registry, `endpoints.toml` or `endpoints.py`; not there = no aliases. From the working folder unless absolute. */
    endpointsPath: z.string().min(1),
    provider: z.enum(providers).nullable(),
    apiBaseUrl: z.string().nullable(),
    /** The name of the environment variable with the key. */
    apiKeyVar: z.string().nullable(),
    clientType: ClientType.nullable(),
    /** Sent with every request. */
    headers: z.record(z.string(), z.string()),
    /** Header → column of the rollout's state that gives its value. */
    headersFromState: z.record(z.string(), z.string()),
  })
  .refine(({ endpointId, model }) => (endpointId === null) !== (model === null), 'either endpointId or model');
export type ModelAccessSpec = z.infer<typeof ModelAccessSpec>;

/** As verifiers has them where nothing is written. */
export const accessDefaults = {
  model: 'openai/gpt-4.1-mini',
  endpointsPath: './configs/endpoints.toml',
  environmentsFolder: './environments',
  headersFromState: { 'X-Session-ID': 'trajectory_id' },
} as const;
