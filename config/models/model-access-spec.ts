/** APIs of an endpoint, in the words of verifiers. */
export const clientTypes = [
  'openai_completions',
  'openai_chat_completions',
  'openai_chat_completions_token',
  'openai_responses',
  'renderer',
  'anthropic_messages',
  'nemorl_chat_completions',
] as const;

/** Providers whose servers have known addresses. */
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

/** verifiers' defaults. */
export const accessDefaults = {
  model: 'openai/gpt-4.1-mini',
  endpointsPath: './configs/endpoints.toml',
  environmentsFolder: './environments',
  headersFromState: { 'X-Session-ID': 'trajectory_id' },
} as const;
