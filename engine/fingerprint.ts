import { readFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import { runtimeVersion } from './onnx/c-api.ts';
import type { Provider, SessionOptions } from './onnx/session.ts';

/** Everything besides its inputs that the bits of a step depend on. Equal fingerprints promise equal bits; others a tolerance. */
interface EngineFingerprint {
  readonly runtime: string;
  readonly provider: Provider;
  readonly threads: number;
  readonly cpu: string;
  /** Vector instructions by which the matrix kernels are chosen; empty where the system does not report them. */
  readonly cpuFeatures: readonly string[];
}

const vectorFeature = /^(sse4_|avx|fma|f16c|amx|asimd|sve|i8mm|bf16)/;

export async function engineFingerprint({ threads, provider = 'cpu' }: SessionOptions): Promise<EngineFingerprint> {
  const info = await readFile('/proc/cpuinfo', 'utf8').catch(() => '');
  const features = /^(?:flags|Features)\s*:\s*(.*)$/m.exec(info)?.[1]?.split(' ') ?? [];
  return {
    runtime: `onnxruntime-node ${runtimeVersion()}`,
    provider,
    threads,
    cpu: `${process.arch} ${cpus()[0]?.model ?? 'unknown'}`,
    cpuFeatures: features.filter((feature) => vectorFeature.test(feature)).toSorted(),
  };
}
