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

/** As verifiers has them where nothing is written. */
export const accessDefaults = {
  model: 'openai/gpt-4.1-mini',
  endpointsPath: './configs/endpoints.toml',
  environmentsFolder: './environments',
  headersFromState: { 'X-Session-ID': 'trajectory_id' },
} as const;
