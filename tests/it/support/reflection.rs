//! The contract as a running service shows it.

use super::service::Service;
use prost::Message as _;
use prost_types::FileDescriptorProto;
use tokio_stream::StreamExt as _;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// What the service answers to one question.
pub async fn reflected(service: &Service, question: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    };
    ServerReflectionClient::new(service.channel().await)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .expect("reflection is served")
        .into_inner()
        .next()
        .await
        .expect("each question has an answer")
        .expect("each question has an answer")
        .message_response
        .expect("an answer says something")
}

/// The file that declares a service or message.
pub async fn file_of(service: &Service, symbol: &str) -> FileDescriptorProto {
    let question = MessageRequest::FileContainingSymbol(symbol.to_owned());
    let MessageResponse::FileDescriptorResponse(files) = reflected(service, question).await else {
        panic!("{symbol} is not reflected");
    };
    let file = files.file_descriptor_proto.first().expect("a file");
    FileDescriptorProto::decode(file.as_slice()).expect("a descriptor")
}
