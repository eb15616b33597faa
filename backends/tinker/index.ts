/** A client of the Tinker API, shared by the trainer and the inference on such servers. */
export { readTarGz } from './archive.ts';
export { type ClientOptions, TinkerClient, TinkerModel } from './client.ts';
export { downloadAdapter } from './download.ts';
export { decodePassOutput, decodeSampleResponse, encodePassRequest } from './proto.ts';
export { isTrouble, TinkerTrouble } from './trouble.ts';
export type * from './types.ts';
