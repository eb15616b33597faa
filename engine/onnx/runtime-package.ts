import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';

interface RuntimePackage {
  /** Of the package onnxruntime-node. */
  readonly folder: string;
  readonly version: string;
  /** Where the package keeps its libraries for this platform: a path of its own, said here and nowhere else. */
  readonly libraries: string;
}

/** Finds the package that brings ONNX Runtime. Loads nothing of it, so that a machine may be looked at where it cannot be loaded. */
export function runtimePackage(): RuntimePackage {
  const require = createRequire(import.meta.url);
  const manifest = require.resolve('onnxruntime-node/package.json');
  const { version } = require(manifest) as { version: string }; // npm demands one
  const folder = dirname(manifest);
  return { folder, version, libraries: join(folder, 'bin', 'napi-v6', process.platform, process.arch) };
}

/** The command that downloads ONNX Runtime's CUDA libraries into the package, as one types it in this folder. */
export function cudaInstall(): string {
  const script = join(relative('', runtimePackage().folder), 'script', 'install.js');
  return `ONNXRUNTIME_NODE_INSTALL=cuda12 node ${script}`;
}
