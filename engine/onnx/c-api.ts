import { join } from 'node:path';
import './no-telemetry.ts'; // before the library, and the library from nowhere else
import koffi from 'koffi';
import { RatchetError } from '../../core/errors.ts';
import { libraryName, runtimePackage } from './runtime-package.ts';

/**
 * The part of ONNX Runtime's C API that the engine uses, called in the library of onnxruntime-node. That package's own
 * binding copies every output of a run into new memory; here tensors are read and written in place. Source:
 * onnxruntime_c_api.h, struct OrtApi, whose members keep their places from version to version.
 */

/** An address. 0 = none. */
export type Pointer = bigint;

/** The requested version of the API; every used member is older. */
const apiVersion = 17;
const pointerBytes = 8;

type Call = ((...values: unknown[]) => unknown) & {
  async: (...values: unknown[]) => void;
};

/**
 * Names and positions in struct OrtApi, and the parameters of each member. All but the releases and the message return
 * a status.
 */
export const members = {
  getErrorMessage: ['GetErrorMessage', 2, 'str', ['void *']],
  createEnv: ['CreateEnv', 3, 'void *', ['int', 'str', 'void *']],
  disableTelemetryEvents: ['DisableTelemetryEvents', 6, 'void *', ['void *']],
  createSessionFromArray: ['CreateSessionFromArray', 8, 'void *', ['void *', 'void *', 'size_t', 'void *', 'void *']],
  run: ['Run', 9, 'void *', ['void *', 'void *', 'void *', 'void *', 'size_t', 'void *', 'size_t', 'void *']],
  createSessionOptions: ['CreateSessionOptions', 10, 'void *', ['void *']],
  setSessionExecutionMode: ['SetSessionExecutionMode', 13, 'void *', ['void *', 'int']],
  disableMemPattern: ['DisableMemPattern', 17, 'void *', ['void *']],
  setSessionLogSeverityLevel: ['SetSessionLogSeverityLevel', 22, 'void *', ['void *', 'int']],
  setGraphOptimizationLevel: ['SetSessionGraphOptimizationLevel', 23, 'void *', ['void *', 'int']],
  setIntraOpNumThreads: ['SetIntraOpNumThreads', 24, 'void *', ['void *', 'int']],
  setInterOpNumThreads: ['SetInterOpNumThreads', 25, 'void *', ['void *', 'int']],
  createTensorWithData: [
    'CreateTensorWithDataAsOrtValue',
    49,
    'void *',
    ['void *', 'void *', 'size_t', 'void *', 'size_t', 'int', 'void *'],
  ],
  getTensorMutableData: ['GetTensorMutableData', 51, 'void *', ['void *', 'void *']],
  getTensorElementType: ['GetTensorElementType', 60, 'void *', ['void *', 'void *']],
  getDimensionsCount: ['GetDimensionsCount', 61, 'void *', ['void *', 'void *']],
  getDimensions: ['GetDimensions', 62, 'void *', ['void *', 'void *', 'size_t']],
  getTensorTypeAndShape: ['GetTensorTypeAndShape', 65, 'void *', ['void *', 'void *']],
  createCpuMemoryInfo: ['CreateCpuMemoryInfo', 69, 'void *', ['int', 'int', 'void *']],
  releaseStatus: ['ReleaseStatus', 93, 'void', ['void *']],
  releaseSession: ['ReleaseSession', 95, 'void', ['void *']],
  releaseValue: ['ReleaseValue', 96, 'void', ['void *']],
  releaseTensorTypeAndShapeInfo: ['ReleaseTensorTypeAndShapeInfo', 99, 'void', ['void *']],
  releaseSessionOptions: ['ReleaseSessionOptions', 100, 'void', ['void *']],
  addSessionConfigEntry: ['AddSessionConfigEntry', 130, 'void *', ['void *', 'str', 'str']],
  addInitializer: ['AddInitializer', 150, 'void *', ['void *', 'void *', 'void *']],
  addExternalInitializers: ['AddExternalInitializers', 210, 'void *', ['void *', 'void *', 'void *', 'size_t']],
  appendCudaProvider: ['SessionOptionsAppendExecutionProvider_CUDA_V2', 204, 'void *', ['void *', 'void *']],
  createCudaProviderOptions: ['CreateCUDAProviderOptions', 205, 'void *', ['void *']],
  releaseCudaProviderOptions: ['ReleaseCUDAProviderOptions', 208, 'void', ['void *']],
} satisfies Record<string, [name: string, place: number, result: string, parameters: string[]]>;

type Member = keyof typeof members;

interface Library {
  /** Held: the library is unloaded when its handle is collected. */
  readonly handle: ReturnType<typeof koffi.load>;
  readonly api: Readonly<Record<Member, Call>>;
  readonly version: string;
  readonly env: Pointer;
}

let loaded: Library | undefined;

/** Calls a member that returns a status; throws its message on failure. */
export function call(member: Member, ...values: unknown[]): void {
  requireOk(library().api[member](...values));
}

/** Memory in use by calls on other threads: kept from the garbage collector until they return. */
const inUse = new Set<unknown>();

/** Calls a member on another thread; the event loop continues meanwhile. `memory` is what the values point into. */
export function callAside(member: Member, values: readonly unknown[], memory: unknown): Promise<void> {
  const held = { values, memory };
  inUse.add(held);
  return new Promise((resolve, reject) => {
    library().api[member].async(...values, (error: Error | null, status: unknown) => {
      inUse.delete(held);
      try {
        if (error) throw error;
        requireOk(status);
        resolve();
      } catch (cause) {
        reject(cause);
      }
    });
  });
}

export function release(member: Member, pointer: Pointer): void {
  library().api[member](pointer);
}

/** Calls a member whose last parameter receives a pointer. */
export function made(member: Member, ...values: unknown[]): Pointer {
  const out = new BigUint64Array(1);
  call(member, ...values, out);
  return out[0]!;
}

/** The process's environment of the runtime: its loggers, and telemetry switched off. */
export function environment(): Pointer {
  return library().env;
}

/** Version of the library, from its package. */
export function runtimeVersion(): string {
  return library().version;
}

/** V8's collector moves small arrays; reading `buffer` once moves their memory to a fixed place. */
export function held<Memory extends NodeJS.TypedArray>(memory: Memory): Memory {
  void memory.buffer;
  return memory;
}

export function addressOf(memory: NodeJS.TypedArray): Pointer {
  return koffi.address(memory);
}

/** A view of memory of the runtime's own, valid until the value it belongs to is released. */
export function viewOf(address: Pointer, byteLength: number): ArrayBuffer {
  return koffi.view(address, byteLength);
}

function library(): Library {
  return (loaded ??= load());
}

function load(): Library {
  returnFreedMemory();
  const { file, version } = locate();
  const handle = open(file);
  const base = handle.func('void *OrtGetApiBase()')() as Pointer;
  const getApi = koffi.decode(koffi.decode(base, 0, 'void *'), koffi.proto('void *', ['uint32_t'])) as Call;
  const struct = getApi(apiVersion) as Pointer | null;
  if (!struct) throw unusable(`version ${version} without API ${apiVersion}`);
  const api = Object.fromEntries(
    Object.entries(members).map(([name, [, place, result, parameters]]) => {
      const prototype = koffi.proto(result, parameters);
      return [name, koffi.decode(koffi.decode(struct, place * pointerBytes, 'void *'), prototype) as Call];
    }),
  ) as Record<Member, Call>; // holds every member
  const out = new BigUint64Array(1);
  const status = api.createEnv(logErrors, 'ratchet', out) ?? api.disableTelemetryEvents(out[0]);
  if (status) throw unusable(String(api.getErrorMessage(status)));
  return { handle, api, version, env: out[0]! };
}

/**
 * Makes glibc return freed memory to the system. glibc raises the size above which allocations are mapped separately, up to 32 MiB.
 * Smaller ones stay with the process if later ones follow them: sessions that came and went left a third of a model's weights behind. A
 * fixed size prevents that. Other C libraries do not need it.
 */
function returnFreedMemory(): void {
  if (process.platform !== 'linux') return;
  const libc = loadIfThere('libc.so.6');
  const set = libc?.func('int mallopt(int, int)');
  for (const parameter of [mmapThreshold, trimThreshold]) set?.(parameter, ownPieceBytes);
}

const mmapThreshold = -3;
const trimThreshold = -1;
/** glibc's initial threshold. */
const ownPieceBytes = 128 << 10;

/** null on systems with another C library. */
function loadIfThere(file: string): ReturnType<typeof koffi.load> | null {
  try {
    return koffi.load(file);
  } catch {
    return null;
  }
}

/** Lower log levels do not concern users. */
export const logErrors = 3;

function locate(): { file: string; version: string } {
  const { libraries, version } = runtimePackage();
  return { file: join(libraries, libraryName(version)), version };
}

function open(file: string): ReturnType<typeof koffi.load> {
  try {
    return koffi.load(file);
  } catch (cause) {
    throw unusable(String(cause), cause);
  }
}

function requireOk(status: unknown): void {
  if (!status) return;
  const { api } = library();
  const message = String(api.getErrorMessage(status));
  api.releaseStatus(status);
  throw new Error(`ONNX Runtime: ${message}`);
}

function unusable(received: string, cause?: unknown): RatchetError {
  const platform = `${process.platform} ${process.arch}`;
  const message = `The engine needs the library of onnxruntime-node for ${platform}, got ${received}. A clone gets it by npm ci; an installed Ratchet fetches it when a worker starts.`;
  return new RatchetError('Unsupported', message, { cause });
}
