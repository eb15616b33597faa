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

/** Addresses of these providers are known by name. */
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

/** Defaults of verifiers. */
export const accessDefaults = {
  model: 'openai/gpt-4.1-mini',
  endpointsPath: './configs/endpoints.toml',
  environmentsFolder: './environments',
  headersFromState: { 'X-Session-ID': 'trajectory_id' },
} as const;

type ClientType = (typeof clientTypes)[number];

/** Which model is asked, and where; null = the registry of endpoints says it, else the provider. */
export interface ModelAccess {
  readonly endpointId: string | null;
  readonly model: string | null;
  readonly endpointsPath: string;
  readonly provider: (typeof providers)[number] | null;
  readonly apiBaseUrl: string | null;
  readonly apiKeyVar: string | null;
  readonly clientType: ClientType | null;
  readonly headers: Readonly<Record<string, string>>;
}

/** One server that answers for an alias of the registry. */
export interface Endpoint {
  readonly model: string;
  readonly baseUrl: string;
  readonly apiKeyVar: string | null;
  readonly clientType: ClientType | null;
  readonly headers: Readonly<Record<string, string>>;
}

export interface Endpoints {
  readonly endpoints: readonly { readonly id: string; readonly replicas: readonly Endpoint[] }[];
}
