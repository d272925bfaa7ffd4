import java.util.List;
import org.heliograph.ApiClient;
import org.heliograph.ApiException;
import org.heliograph.api.CampaignsApi;
import org.heliograph.api.SmsApi;
import org.heliograph.api.WhatsappApi;
import org.heliograph.model.CreateCampaign;
import org.heliograph.model.SendSms;
import org.heliograph.model.SendWhatsAppMessageRequest;
import org.heliograph.model.SendWhatsAppText;
import org.heliograph.model.WhatsAppTextContent;

/**
 * Uses the Java client that openapi-generator made of the OpenAPI document, as a stranger would.
 * Arguments: base URL below which /v1 is, API key. Prints a line for each answer.
 */
public class UseClient {
  public static void main(String[] arguments) throws ApiException {
    ApiClient client = new ApiClient();
    client.updateBaseUri(arguments[0] + "/v1");
    client.setRequestInterceptor(request -> request.header("authorization", "Bearer " + arguments[1]));

    SendSms send = new SendSms().to("+258841234567").message("Hello");
    var sent = new SmsApi(client).sendSms("java-1", send, null);
    System.out.println(sent.getStatus() + " " + sent.getCount() + " " + sent.getProvider().getMessageId());

    CreateCampaign wish = new CreateCampaign().name("Sale").messageTemplate("Hello").recipients(List.of("+258841234567"));
    var campaign = new CampaignsApi(client).createCampaign(wish, null, null).getCampaign();
    System.out.println(campaign.getName() + " " + campaign.getRecipientCount());

    SendWhatsAppText text = new SendWhatsAppText();
    text.setType(SendWhatsAppText.TypeEnum.TEXT);
    text.setTo("+258841234567");
    text.setPhoneNumberId(java.util.UUID.fromString("019c8f64-1f0a-7d52-8c3b-5a9e2d7f6b10"));
    text.setText(new WhatsAppTextContent().body("Hello"));
    try {
      new WhatsappApi(client).sendWhatsAppMessage(new SendWhatsAppMessageRequest(text), null, null);
    } catch (ApiException refusal) {
      System.out.println(refusal.getCode());
    }
  }
}
